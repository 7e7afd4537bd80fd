package command

import "syscall"

// diesWithParent has a program be killed when this process ends.
func diesWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
