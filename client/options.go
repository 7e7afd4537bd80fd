package client

// Option says how a lock is acquired.
type Option func(*options)

type options struct {
	shared      bool
	permits, of int
	metadata    string
	client      string
}

// Shared acquires a lock that other shared holders may have too, until somebody else waits
// before them.
func Shared() Option { return func(o *options) { o.shared = true } }

// Permits acquires some of the permits of a semaphore, which has as many of them as all its
// users say alike.
func Permits(permits, of int) Option {
	return func(o *options) { o.permits, o.of = permits, of }
}

// As names who asks, for the lock service: where clients with names wait for each other, so that no
// lock of theirs would ever be free, the youngest call ends with a DeadlockError. A name is that of one
// thread of work, which releases nothing while it waits. Sessions and processes may share it, and a
// session may have several, for different locks. Without a name a call has no part in that, nor has any call
// on etcd.
func As(client string) Option { return func(o *options) { o.client = client } }

// Metadata is told to whoever looks at the queue.
func Metadata(s string) Option { return func(o *options) { o.metadata = s } }

func newOptions(opts []Option) (*options, error) {
	o := new(options)
	for _, opt := range opts {
		opt(o)
	}
	if o.of < 0 || o.permits < 0 || o.permits > o.of || (o.of > 0) != (o.permits > 0) || o.shared && o.of > 0 {
		return nil, ErrOption
	}
	return o, nil
}
