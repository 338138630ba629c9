// Package lbprocesstest holds only a test of balancers. The servers are real processes that join by pawl groups and are
// killed under load, over stores that go away.
package lbprocesstest
