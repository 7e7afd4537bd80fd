package faults

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// need is something that a fault takes of the machine. All of them take root.
type need struct {
	// name says what is missing where it is.
	name string
	// programs are those that must be there, devices what must be possible to open.
	programs, devices []string
	// try, if not nil, fails where the kernel lacks it.
	try func() error
}

var (
	links  = &need{name: "network namespaces", programs: []string{"ip", "nsenter"}}
	filter = &need{name: "nftables", programs: []string{"nft"}}
	shaper = &need{name: "queues of limited rate", programs: []string{"tc", "unshare"}, try: func() error {
		return command("unshare", append([]string{"-n", "tc", "qdisc", "replace", "dev", "lo", "root"}, queue(minRate)...)...)
	}}
	tun   = &need{name: "TUN devices", devices: []string{"/dev/net/tun"}}
	loops = &need{
		name: "loop devices", programs: []string{"mkfs.ext4", "mount", "umount", "fsfreeze", "fallocate"},
		devices: []string{"/dev/loop-control"},
	}
	fuse = &need{name: "FUSE", devices: []string{"/dev/fuse"}}
)

// missing says what of a need the machine lacks, nothing if it has it all.
func (n *need) missing() string {
	if os.Getuid() != 0 {
		return "root"
	}
	for _, p := range n.programs {
		if _, err := exec.LookPath(p); err != nil {
			return p
		}
	}
	for _, d := range n.devices {
		f, err := os.OpenFile(d, os.O_RDWR, 0)
		if err != nil {
			return d
		}
		_ = f.Close() // nothing was written
	}
	if n.try != nil {
		if err := n.try(); err != nil {
			return "another kernel: " + err.Error()
		}
	}
	return ""
}

// Kinds returns the names of all faults, in order.
func Kinds() []string { return slices.Sorted(maps.Keys(faults)) }

// Choose returns those of some kinds of faults that this machine allows, and why each
// other was left out. No kinds are all of them.
func Choose(kinds []string) (chosen, left []string, err error) {
	if len(kinds) == 0 {
		kinds = Kinds()
	}
	for _, kind := range kinds {
		f, ok := faults[kind]
		if !ok {
			return nil, nil, fmt.Errorf("no fault %q; there are %s", kind, strings.Join(Kinds(), ", "))
		}
		lacks := ""
		for _, n := range f.needs {
			if m := n.missing(); m != "" {
				lacks = fmt.Sprintf("%s (%s needs %s)", kind, n.name, m)
				break
			}
		}
		if lacks == "" {
			chosen = append(chosen, kind)
		} else {
			left = append(left, lacks)
		}
	}
	return chosen, left, nil
}

// Gear is what the machine gives a cluster so that some kinds of faults can befall it.
type Gear struct {
	// Network and Disks are nil where no fault needs them.
	Network *Network
	Disks   *Disks
}

// NewGear makes what some kinds of faults need, for so many nodes. dir receives the disks.
func NewGear(kinds []string, nodes int, dir string) (g *Gear, err error) {
	g = &Gear{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Close())
		}
	}()
	needs := func(n *need) bool {
		return slices.ContainsFunc(kinds, func(k string) bool { return slices.Contains(faults[k].needs, n) })
	}
	if needs(links) {
		if g.Network, err = NewNetwork(nodes); err != nil {
			return g, err
		}
	}
	if needs(loops) {
		if g.Disks, err = NewDisks(nodes, dir, needs(fuse)); err != nil {
			return g, err
		}
	}
	return g, nil
}

// Close removes it all, after the cluster.
func (g *Gear) Close() error {
	var errs []error
	if g.Network != nil {
		errs = append(errs, g.Network.Close())
	}
	if g.Disks != nil {
		errs = append(errs, g.Disks.Close())
	}
	return errors.Join(errs...)
}
