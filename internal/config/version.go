package config

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"go.etcd.io/etcd/api/v3/version"
)

// Version is the version of Latchkey.
const Version = "0.1.0"

// WriteVersion writes what --version prints.
func WriteVersion(w io.Writer) error {
	_, err := fmt.Fprintf(w, "latchkey %s\netcd API %s\n%s %s/%s\ncommit %s\n",
		Version, version.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH, Commit())
	if err != nil {
		return fmt.Errorf("write version: %w", err)
	}
	return nil
}

// Commit returns the commit that the program was built from, with "-modified" behind it
// where files were changed since; "unknown" where the build did not note it, as by go run.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return commitOf(info.Settings)
}

func commitOf(settings []debug.BuildSetting) string {
	commit, modified := "unknown", ""
	for _, s := range settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "-modified"
		}
	}
	return commit + modified
}
