//go:build race

package processtest

const raceDetector = true
