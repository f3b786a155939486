"""The description of a group, against scripted coordinators."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_eos.exceptions import ConfigurationError
from airflow_eos.wire.groups import describe_group
from tests.unit.wire.fakes import ScriptedCoordinator, kind_of


class FakeCoordinator(ScriptedCoordinator):
    """Coordinator of one group, which it lists with its type; it describes only classic groups."""

    def __init__(self, group_type, state):
        super().__init__()
        self.listed = SimpleNamespace(group_id="g", group_type=group_type, group_state=state)

    def answer(self, request, code):
        if kind_of(request) == "ListGroups":
            return SimpleNamespace(error_code=code, groups=[self.listed])
        unknown = SimpleNamespace(error_code=69, members=[], group_state="Dead", authorized_operations=None)
        return SimpleNamespace(groups=[unknown])


@pytest.fixture
def members(request):
    """Return a function that asks for the members of a group of a given type and state."""

    def ask(group_type, state):
        coordinator = FakeCoordinator(group_type, state)
        request.addfinalizer(coordinator.close)
        return describe_group(coordinator, "g").members

    return ask


@pytest.mark.parametrize(("state", "count"), [("Empty", 0), ("Stable", 1)])
def test_a_group_of_the_newer_protocol_is_found_in_the_list(members, state, count):
    """Its members are not counted."""
    assert members("consumer", state) == count


@pytest.mark.parametrize("state", ["Empty", "Stable"])
def test_a_share_group_is_refused_before_anything_is_read(members, state):
    """It accepts no offsets: a run once sent its output in vain, three times per try."""
    with pytest.raises(ConfigurationError, match="DescribeGroups of group 'g': a share group has this name"):
        members("share", state)
