package etcdlog

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
)

func newLogger(b *bytes.Buffer, l slog.Level) *zap.Logger {
	return New(slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{
		Level: l,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
}

func TestRecords(t *testing.T) {
	var b bytes.Buffer
	log := newLogger(&b, slog.LevelDebug)
	log.Debug("d")
	log.Info("i", zap.Int("z", 1), zap.String("a", "x y"), zap.Duration("d", time.Second))
	log.Warn("w", zap.Error(errors.New("broken")))
	log.Error("e", zap.Strings("s", []string{"a", "b"}))
	child := log.Named("client").With(zap.Bool("own", true))
	child.Info("c", zap.Namespace("grpc"), zap.Int("code", 5))
	log.Info("after the child")
	want := `level=DEBUG msg=d
level=INFO msg=i a="x y" d=1s z=1
level=WARN msg=w error=broken
level=ERROR msg=e s="[a b]"
level=INFO msg=c logger=client grpc.code=5 own=true
level=INFO msg="after the child"
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if err := log.Sync(); err != nil {
		t.Error(err)
	}
}

func TestLevels(t *testing.T) {
	var b bytes.Buffer
	log := newLogger(&b, slog.LevelWarn)
	log.Debug("d")
	log.Info("i")
	log.Warn("w")
	func() {
		defer func() {
			if recover() == nil {
				t.Error("zap did not panic")
			}
		}()
		log.Panic("p")
	}()
	if diff := cmp.Diff("level=WARN msg=w\nlevel=ERROR msg=p\n", b.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}
