package faults

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// openTUN makes a device whose packets this program reads and writes, in the program's own
// network namespace. It is gone when it is closed.
func openTUN(name string) (*os.File, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("name device %s: %w", name, err)
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	// Only once it is attached can it be polled, which os.NewFile finds out.
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		_ = unix.Close(fd) // it holds nothing
		return nil, fmt.Errorf("make device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
