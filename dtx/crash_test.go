package dtx_test

import "context"

func work(context.Context) error { return nil }
