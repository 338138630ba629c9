package dtx

// SetStep calls f at each step of a transaction that lasts over a crash.
func SetStep(f func(name string, branch int)) { step = f }
