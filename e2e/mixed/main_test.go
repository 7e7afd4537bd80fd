package mixed

import (
	"os"
	"testing"

	"github.com/latchkey-db/latchkey/e2e/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Run(m)) }
