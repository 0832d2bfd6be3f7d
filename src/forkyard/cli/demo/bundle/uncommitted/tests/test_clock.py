"""The bug: a schedule with a clock of its own still reads the wall clock."""

import unittest

from webhooks.retry import RetrySchedule


class ClockTest(unittest.TestCase):
    """Whose time it is."""

    def test_next_try_is_counted_from_the_given_clock(self) -> None:
        """With a clock that stands at 1000, the first retry is due at 1001."""
        self.assertEqual(1001.0, RetrySchedule(clock=lambda: 1000.0).next_try(1))
