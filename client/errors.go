package client

import "errors"

// Why a session or a grant is over, as Lost and the causes of contexts tell it.
var (
	// ErrExpired says that the lease has ended, or may have: no renewal was answered in time.
	ErrExpired = errors.New("client: the lease may have ended")
	// ErrTaken says that the holder's key was deleted by somebody else.
	ErrTaken = errors.New("client: the lock was taken away")
	// ErrReleased says that the holder has released the lock.
	ErrReleased = errors.New("client: the lock was released")
	// ErrClosed says that the session was closed.
	ErrClosed = errors.New("client: the session was closed")
)

// Errors of calls.
var (
	// ErrNotAcquired is returned by TryAcquire where somebody else has the lock, or waits
	// for it.
	ErrNotAcquired = errors.New("client: the lock is not free")
	// ErrOption is returned for options that can't be.
	ErrOption = errors.New("client: bad option")
)
