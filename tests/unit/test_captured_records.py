"""What ``caplog`` captures: a test that compares all records must not depend on the tests before it."""

from __future__ import annotations

import _thread
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


@pytest.fixture
def number_of_a_foreign_thread():
    """Return the number of an ended thread that Python did not start, and therefore keeps in its list."""
    numbers, registered = [], threading.Event()

    def register():
        numbers.append(threading.current_thread().ident)
        registered.set()

    _thread.start_new_thread(register, ())
    registered.wait()
    return numbers[0]


def test_a_thread_with_the_number_of_an_ended_one_is_of_the_test(number_of_a_foreign_thread, caplog):
    """The system gives the number of an ended thread to a later one."""

    def work():
        log.warning("of thread %d", threading.get_ident())

    message = f"of thread {number_of_a_foreign_thread}"
    for _ in range(1000):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if thread.ident == number_of_a_foreign_thread:
            break
    assert message in caplog.messages
