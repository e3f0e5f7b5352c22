//go:build race

package powercut

func init() { raceEnabled = true }
