package client

import "time"

// clock tells the time since some moment. It runs on while the process, or the whole machine,
// is stopped.
type clock func() time.Duration
