package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// MiB is a mebibyte.
const MiB = 1 << 20

// RSS returns the bytes of memory that the process has resident.
func (p *Process) RSS() int64 {
	p.T.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Cmd.Process.Pid))
	if err != nil {
		p.T.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if size, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(size), "kB")), 10, 64)
			if err != nil {
				p.T.Fatal(err)
			}
			return kib << 10
		}
	}
	p.T.Fatalf("no VmRSS in %s", status)
	return 0
}

// cpu returns the time that the process has run on a processor.
func (p *Process) cpu() time.Duration {
	p.T.Helper()
	const tick = time.Second / 100 // the kernel's USER_HZ
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	if err != nil {
		p.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	const user, system = 11, 12
	var sum time.Duration
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			p.T.Fatal(err)
		}
		sum += time.Duration(n) * tick
	}
	return sum
}

// Load returns the share of one core that the process takes over a time in which
// nobody asks anything of it.
func (p *Process) Load(over time.Duration) float64 {
	p.T.Helper()
	before, begin := p.cpu(), time.Now()
	wait := time.NewTimer(over)
	<-wait.C
	return float64(p.cpu()-before) / float64(time.Since(begin))
}
