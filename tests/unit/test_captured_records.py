"""What ``caplog`` captures: a test that compares all records must not depend on the tests before it."""

from __future__ import annotations

import logging
import threading

import pytest

log = logging.getLogger(__name__)


@pytest.fixture
def earlier_test():
    """Return a function that lets a thread of an earlier test log a record."""
    goes_on = threading.Event()

    def work():
        goes_on.wait()
        log.warning("of an earlier test")

    thread = threading.Thread(target=work)
    thread.start()

    def end():
        goes_on.set()
        thread.join()

    yield end
    end()


def test_records_of_threads_that_began_earlier_are_dropped(earlier_test, caplog):
    """Those of the test's own threads are captured, too."""
    earlier_test()
    own = threading.Thread(target=log.warning, args=["of a thread"])
    own.start()
    own.join()
    log.warning("of the test")
    assert caplog.messages == ["of a thread", "of the test"]
