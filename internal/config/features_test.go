package config

import "testing"

func TestFeatures(t *testing.T) {
	for _, tc := range []struct {
		gates            string
		initial, compact bool
		warnings         int
	}{
		{"", false, false, 0},
		{"InitialCorruptCheck=true", true, false, 0},
		{" CompactHashCheck = true , InitialCorruptCheck=1 ,", true, true, 0},
		{"CompactHashCheck=true,CompactHashCheck=false", false, false, 0},
		{"AllAlpha=true", true, true, 5},
		{"AllAlpha=true,CompactHashCheck=false,LeaseCheckpoint=false", true, false, 4},
		{"AllBeta=true,FastLeaseKeepAlive=true", false, false, 0},
		{"FastLeaseKeepAlive=false", false, false, 1},
	} {
		c, err := Parse([]string{"--feature-gates=" + tc.gates}, nil)
		if err != nil {
			t.Errorf("%q: %v", tc.gates, err)
			continue
		}
		if c.InitialCorruptCheck != tc.initial || c.CompactHashCheck != tc.compact || len(c.Warnings) != tc.warnings {
			t.Errorf("%q: initial %v, compact %v, warnings %v", tc.gates, c.InitialCorruptCheck, c.CompactHashCheck, c.Warnings)
		}
	}
}
