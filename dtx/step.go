package dtx

// step is called at each step of a transaction that lasts over a crash. Tests set it, to end the process there.
var step = func(name string, branch int) {}
