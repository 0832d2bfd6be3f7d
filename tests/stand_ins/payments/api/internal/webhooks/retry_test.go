package webhooks

import (
	"testing"
	"time"

	"acme-corp.example/clock"
)

const (
	first = time.Second
	most  = time.Minute
)

func retryAt(at time.Time) *Retry {
	return NewRetry(clock.Fixed{At: at}, first, most)
}

func TestFirstDelayIsTheShortest(t *testing.T) {
	retry := retryAt(time.Unix(0, 0))
	if got := retry.Delay(1); got != first {
		t.Fatalf("the first delay is %s, want %s", got, first)
	}
}

func TestDelaysDouble(t *testing.T) {
	retry := retryAt(time.Unix(0, 0))
	for attempts := 2; attempts <= 6; attempts++ {
		before, after := retry.Delay(attempts-1), retry.Delay(attempts)
		if after != 2*before {
			t.Fatalf("delay %d is %s, want twice %s", attempts, after, before)
		}
	}
}

func TestDelaysEndAtTheLongest(t *testing.T) {
	retry := retryAt(time.Unix(0, 0))
	for _, attempts := range []int{7, 8, 20, 1000} {
		if got := retry.Delay(attempts); got != most {
			t.Fatalf("delay %d is %s, want %s", attempts, got, most)
		}
	}
}

func TestNoAttemptWaitsAsTheFirst(t *testing.T) {
	retry := retryAt(time.Unix(0, 0))
	if got := retry.Delay(0); got != first {
		t.Fatalf("the delay of no attempt is %s, want %s", got, first)
	}
}

func TestNextIsLaterThanTheDelayBefore(t *testing.T) {
	retry := retryAt(time.Now())
	for attempts := 1; attempts <= 6; attempts++ {
		if !retry.Next(attempts + 1).After(retry.Next(attempts)) {
			t.Fatalf("attempt %d is not before the one that follows", attempts)
		}
	}
}

func TestLongestDelayMayBeTheFirst(t *testing.T) {
	retry := NewRetry(clock.System{}, most, most)
	if got := retry.Delay(3); got != most {
		t.Fatalf("the delay is %s, want %s", got, most)
	}
}

// A customer whose endpoint is down must not be asked more often the longer it is down,
// whatever end the delays have.
func TestDelaysNeverShrink(t *testing.T) {
	longest := []time.Duration{first, 3 * first, most, time.Hour}
	for _, end := range longest {
		retry := NewRetry(clock.System{}, first, end)
		before := time.Duration(0)
		for attempts := 0; attempts <= 20; attempts++ {
			delay := retry.Delay(attempts)
			if delay < before {
				t.Fatalf("delay %d is %s, less than %s before", attempts, delay, before)
			}
			before = delay
		}
	}
}
