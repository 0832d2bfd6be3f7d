// Package clock tells the time, or the time that a test wants it to be.
package clock

import "time"

// Clock tells the time.
type Clock interface {
	Now() time.Time
}

// System is the clock of this machine.
type System struct{}

// Now gives the current time.
func (System) Now() time.Time {
	return time.Now()
}

// Fixed is a clock that stands still.
type Fixed struct {
	At time.Time
}

// Now gives the time at which it stands.
func (fixed Fixed) Now() time.Time {
	return fixed.At
}
