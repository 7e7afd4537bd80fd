package client

// Option says how a lock is acquired.
type Option func(*options)

type options struct {
	shared      bool
	permits, of int
	metadata    string
}

// Shared acquires a lock that other shared holders may have too, until somebody else waits
// before them.
func Shared() Option { return func(o *options) { o.shared = true } }

// Permits acquires some of the permits of a semaphore, which has as many of them as all its
// users say alike.
func Permits(permits, of int) Option {
	return func(o *options) { o.permits, o.of = permits, of }
}

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
