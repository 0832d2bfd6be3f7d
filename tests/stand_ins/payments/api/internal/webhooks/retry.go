// Package webhooks delivers events to customers, again and again until they take them.
package webhooks

import (
	"time"

	"acme-corp.example/clock"
)

// Retry says when a delivery that failed is tried again.
type Retry struct {
	clock clock.Clock
	first time.Duration
	most  time.Duration
}

// NewRetry makes one whose delays start at first, double each time and end at most.
func NewRetry(from clock.Clock, first, most time.Duration) *Retry {
	return &Retry{clock: from, first: first, most: most}
}

// Delay gives how long to wait after so many attempts.
func (retry *Retry) Delay(attempts int) time.Duration {
	delay := retry.first
	for done := 1; done < attempts && delay < retry.most; done++ {
		delay *= 2
	}
	if delay > retry.most {
		return retry.most
	}
	return delay
}

// Next gives the time of the next attempt.
func (retry *Retry) Next(attempts int) time.Time {
	return time.Now().Add(retry.Delay(attempts))
}
