//go:build !linux

package command

import "syscall"

func diesWithParent() *syscall.SysProcAttr { return nil }
