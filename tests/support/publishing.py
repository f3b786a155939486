"""A process that publishes to a table, with others' commits between its check and its commit."""

from __future__ import annotations

from collections.abc import Callable

from airflow_eos.run.publishing import Claim, Publisher


class PublishingAttempt:
    """A process with a claim to a table, and files for it.

    :ivar committed: run keys in the ledger.
    :ivar before_commit: called once, between the attempt's check and its commit.
    :ivar after_commit: called once, after its commit.
    :ivar commit: the sink's own commit method.
    """

    def __init__(self, sink, key, scope, token, *, lasting):
        self.sink = sink
        self.committed: set[str] = set()
        self.before_commit: Callable[[], object] | None = None
        self.after_commit: Callable[[], object] | None = None
        self.commits = 0
        self.commit = sink.commit
        sink.commit = self.watched(self.commit)
        self.publisher = Publisher(sink, self._committed_among, sleep=lambda _: None)
        self.version = sink.load()
        self.claim = Claim(key, scope, token, self.version.layout, lasting, (("eos.run-key", key),))
        self.files = []

    def watched(self, commit):
        """Wrap a commit of the sink with the calls before and after it."""

        def commit_between(*arguments):
            self.commits += 1
            before, self.before_commit = self.before_commit, None
            if before is not None:
                before()
            receipt = commit(*arguments)
            after, self.after_commit = self.after_commit, None
            if after is not None:
                after()
            return receipt

        return commit_between

    def _committed_among(self, keys):
        return frozenset(self.committed & set(keys))

    def publish(self):
        return self.publisher.publish(self.claim, self.files)
