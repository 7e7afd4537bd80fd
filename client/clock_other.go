//go:build !linux

package client

import "time"

func systemClock() time.Duration { return wallClock() }
