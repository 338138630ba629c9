package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const lockName = "report"

// hold is process A: it takes the lock, writes, sees that it still has the lock,
// and writes again. Between the look and the write it is frozen. No code can
// prevent that: however late it looks, the write comes later.
func hold(ctx context.Context, in io.Reader, out io.Writer) error {
	orders, replies := json.NewDecoder(in), json.NewEncoder(out)
	var s settings
	if err := orders.Decode(&s); err != nil {
		return err
	}
	all, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer all.close()
	client, closeAll, err := s.client(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	lease, err := client.Mutex(lockName).Lock(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(all.write(ctx, "of A", lease.Token())...); err != nil {
		return err
	}
	if err := lease.Err(); err != nil {
		return err
	}
	if err := replies.Encode(lease.Token().String()); err != nil { // now it is frozen
		return err
	}
	var goOn string
	if err := orders.Decode(&goOn); err != nil {
		return err
	}
	// ctx and not lease.Context(): the write stands for a request that was on its way already.
	var late []string
	for _, err := range all.write(ctx, "of A, late", lease.Token()) {
		if err != nil {
			late = append(late, fmt.Sprintf("refused: %v", err))
		} else {
			late = append(late, "landed")
		}
	}
	return replies.Encode(late)
}
