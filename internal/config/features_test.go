package config

import "testing"

func TestFeatures(t *testing.T) {
	for _, tc := range []struct {
		gates            string
		initial, compact bool
		wide             bool
		warnings         int
	}{
		{"", false, false, true, 0},
		{"InitialCorruptCheck=true", true, false, true, 0},
		{" CompactHashCheck = true , InitialCorruptCheck=1 ,", true, true, true, 0},
		{"CompactHashCheck=true,CompactHashCheck=false", false, false, true, 0},
		{"AllAlpha=true", true, true, true, 5},
		{"AllAlpha=true,CompactHashCheck=false,LeaseCheckpoint=false", true, false, true, 4},
		{"AllBeta=true,FastLeaseKeepAlive=true", false, false, true, 0},
		{"FastLeaseKeepAlive=false", false, false, true, 1},
		{"WritesOverShards=false", false, false, false, 0},
		{"AllBeta=false", false, false, false, 2},
		{"AllBeta=false,WritesOverShards=true", false, false, true, 2},
	} {
		c, err := Parse([]string{"--feature-gates=" + tc.gates}, nil)
		if err != nil {
			t.Errorf("%q: %v", tc.gates, err)
			continue
		}
		if c.InitialCorruptCheck != tc.initial || c.CompactHashCheck != tc.compact || c.WritesOverShards != tc.wide || len(c.Warnings) != tc.warnings {
			t.Errorf("%q: initial %v, compact %v, over shards %v, warnings %v", tc.gates, c.InitialCorruptCheck, c.CompactHashCheck, c.WritesOverShards, c.Warnings)
		}
	}
}
