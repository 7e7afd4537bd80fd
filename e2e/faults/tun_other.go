//go:build !linux

package faults

import (
	"errors"
	"os"
)

func openTUN(string) (*os.File, error) { return nil, errors.ErrUnsupported }
