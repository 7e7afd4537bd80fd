package mvcc

import (
	"syscall"
	"testing"
)

// cpuMeter measures the CPU time of the process, which says more than the clock where
// others use the machine.
type cpuMeter struct {
	b     *testing.B
	began int64
}

func meterCPU(b *testing.B) cpuMeter {
	b.Helper()
	return cpuMeter{b, cpuTime(b)}
}

// report reports the time spent since meterCPU.
func (m cpuMeter) report() {
	m.b.Helper()
	m.b.ReportMetric(float64(cpuTime(m.b)-m.began)/float64(m.b.N), "cpu-ns/op")
}

func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
