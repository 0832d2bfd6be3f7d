// Command payments-api says when a webhook that failed is delivered again.
package main

import (
	"fmt"
	"time"

	"acme-corp.example/clock"

	"github.com/acme-corp/payments-api/internal/webhooks"
)

func main() {
	retry := webhooks.NewRetry(clock.System{}, time.Second, time.Minute)
	for attempt := 1; attempt <= 5; attempt++ {
		fmt.Println(attempt, retry.Next(attempt).Format(time.RFC3339))
	}
}
