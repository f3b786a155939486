"""The table of ``docs/guarantees/laws.md``, run: each named test finds its law missing."""

import pytest

from tests.guarantees.without_law import JUDGED, REMOVALS, what_fails_without

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize(
    ("name", "test"), [(name, test) for name, removal in REMOVALS.items() for test in removal.tests]
)
def test_the_named_test_fails_without_its_law(name, test):
    """A failure counts only if the test itself judges the result, not in its set-up or by a time-out."""
    assert what_fails_without(name, test) == JUDGED
