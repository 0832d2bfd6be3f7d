"""What the schedule promised from the start."""

import unittest

from webhooks.retry import LONGEST_WAIT_SECONDS, MOST_TRIES, RetrySchedule, wait_seconds


class WaitTest(unittest.TestCase):
    """How long a wait is."""

    def test_doubles_with_each_failure(self) -> None:
        """Each wait is twice the one before."""
        self.assertEqual([1.0, 2.0, 4.0, 8.0], [wait_seconds(tries) for tries in (1, 2, 3, 4)])

    def test_never_exceeds_the_longest_wait(self) -> None:
        """A delivery that failed very often is still tried within the longest wait."""
        self.assertEqual(LONGEST_WAIT_SECONDS, wait_seconds(40))


class EndTest(unittest.TestCase):
    """When it gives up."""

    def test_stops_after_the_last_try(self) -> None:
        """There is no next try once the last one failed."""
        self.assertIsNone(RetrySchedule().next_try(MOST_TRIES))
