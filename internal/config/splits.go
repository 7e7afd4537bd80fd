package config

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxSplits bounds the shards that a cluster is made with.
const maxSplits = 255

// finishSplits reads --initial-splits: keys separated by commas, in which \xNN
// stands for any byte and \\ for a backslash.
func (c *Config) finishSplits() error {
	if c.initialSplits == "" {
		return nil
	}
	for word := range strings.SplitSeq(c.initialSplits, ",") {
		key, err := unescape(word)
		if err == nil && len(key) == 0 {
			err = errors.New("a key must not be empty")
		}
		if err != nil {
			return fmt.Errorf("invalid value %q for --initial-splits: %w", c.initialSplits, err)
		}
		c.InitialSplits = append(c.InitialSplits, key)
	}
	slices.SortFunc(c.InitialSplits, bytes.Compare)
	for i := 1; i < len(c.InitialSplits); i++ {
		if bytes.Equal(c.InitialSplits[i-1], c.InitialSplits[i]) {
			return fmt.Errorf("--initial-splits has %q twice", c.InitialSplits[i])
		}
	}
	if len(c.InitialSplits) > maxSplits {
		return fmt.Errorf("--initial-splits has %d keys, %d at the most", len(c.InitialSplits), maxSplits)
	}
	return nil
}

func unescape(word string) ([]byte, error) {
	key := make([]byte, 0, len(word))
	for len(word) > 0 {
		switch {
		case word[0] != '\\':
			key, word = append(key, word[0]), word[1:]
		case strings.HasPrefix(word, `\\`):
			key, word = append(key, '\\'), word[2:]
		case strings.HasPrefix(word, `\x`) && len(word) >= 4:
			b, err := strconv.ParseUint(word[2:4], 16, 8)
			if err != nil {
				return nil, fmt.Errorf("%q is no byte in hexadecimal", word[:4])
			}
			key, word = append(key, byte(b)), word[4:]
		default:
			return nil, errors.New(`a backslash must be followed by another or by x and two hexadecimal digits`)
		}
	}
	return key, nil
}
