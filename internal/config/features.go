package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The groups of features by which many are switched at once.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

// feature is one of etcd's features that can be switched.
type feature struct {
	// on is where the switch goes, nil for one that does nothing here.
	on *bool
	// normal is what it is without being switched, and group what it is switched with.
	normal bool
	group  string
}

// features returns those of etcd, and one that etcd does not need, by name, bound to c.
func (c *Config) features() map[string]feature {
	return map[string]feature{
		"InitialCorruptCheck":          {on: &c.InitialCorruptCheck, group: allAlpha},
		"CompactHashCheck":             {on: &c.CompactHashCheck, group: allAlpha},
		"WritesOverShards":             {on: &c.WritesOverShards, normal: true, group: allBeta},
		"StopGRPCServiceOnDefrag":      {group: allAlpha},
		"LeaseCheckpoint":              {group: allAlpha},
		"LeaseCheckpointPersist":       {group: allAlpha},
		"SetMemberLocalAddr":           {group: allAlpha},
		"PriorityRequest":              {group: allAlpha},
		"TxnModeWriteWithSharedBuffer": {normal: true, group: allBeta},
		"FastLeaseKeepAlive":           {normal: true, group: allBeta},
	}
}

// gates is a value that parseGates takes.
func gates(p *string) value {
	return &scalar[string]{p: p, parse: func(s string) (string, error) {
		_, err := parseGates(s)
		return s, err
	}, format: same, k: kindText}
}

// finishFeatures reads --feature-gates. What is switched by name goes before what is
// switched by its group.
func (c *Config) finishFeatures() error {
	features := c.features()
	gates, err := parseGates(c.featureGates)
	if err != nil {
		return err
	}
	for name := range gates {
		if _, known := features[name]; !known && name != allAlpha && name != allBeta {
			return fmt.Errorf("invalid value %q for --feature-gates: there is no feature %q", c.featureGates, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(features)) {
		f := features[name]
		if f.on != nil {
			*f.on = f.normal
		}
		on, made := gates[name]
		if !made {
			on, made = gates[f.group]
		}
		switch {
		case !made:
		case f.on != nil:
			*f.on = on
		case on != f.normal:
			c.Warnings = append(c.Warnings, Warning{
				Setting: "--feature-gates", Text: "has no effect: " + name + " is either built in here or not",
			})
		}
	}
	return nil
}

// parseGates reads name=true,... Of one that comes twice the last counts.
func parseGates(s string) (map[string]bool, error) {
	gates := make(map[string]bool)
	for gate := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(gate) == "" {
			continue
		}
		name, value, _ := strings.Cut(gate, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return nil, fmt.Errorf("must be name=true or name=false, separated by commas, not %q", gate)
		}
		gates[strings.TrimSpace(name)] = on
	}
	return gates, nil
}
