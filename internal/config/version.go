package config

import (
	"fmt"
	"io"
	"runtime"

	"go.etcd.io/etcd/api/v3/version"
)

// Version is the version of Latchkey.
const Version = "0.1.0"

// WriteVersion writes what --version prints.
func WriteVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "latchkey %s\netcd API %s\n%s %s/%s\n",
		Version, version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return fmt.Errorf("write version: %w", err)
	}
	return nil
}
