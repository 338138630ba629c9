package work_test

import (
	"context"
	"fmt"
	"log"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/engine/memengine"
	"github.com/pawl-go/pawl/work"
)

// client returns a client of a store of its own; a program has an engine of the
// store that it shares with others.
func client() *pawl.Client {
	c, err := pawl.New(context.Background(), memengine.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// Each item goes to one worker; that of a worker that dies goes to another.
func ExampleQueue() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	mails := work.New(client, "mails", nil)

	if err := mails.Put(ctx, []byte("to Ada"), []byte("to Grace")); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		mail, err := mails.Claim(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(string(mail.Data), mail.Token() > 0) // the token fences the work
		if err := mail.Done(ctx); err != nil {           // or Return: another worker tries
			log.Fatal(err)
		}
	}
	fmt.Println(mails.Len(ctx))
	// Output:
	// to Ada true
	// to Grace true
	// 0 <nil>
}

// An item that no worker can do ends among the dead letters, where an operator finds it.
func ExampleQueue_DeadLetters() {
	ctx := context.Background()
	client := client()
	defer client.Close(ctx)
	mails := work.New(client, "letters", &work.Options{MaxAttempts: 2})
	if err := mails.Put(ctx, []byte("to nobody"), []byte("to Ada")); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		mail, err := mails.Claim(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("attempt", mail.Attempts, string(mail.Data))
		if string(mail.Data) == "to nobody" {
			err = mail.Return(ctx) // or ReturnAfter: it is tried at a later time
		} else {
			err = mail.Done(ctx)
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	dead := mails.DeadLetters()
	for letter, err := range dead.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("dead after", letter.Attempts, string(letter.Data))
		if err := dead.Retry(ctx, letter.ID); err != nil { // or Drop
			log.Fatal(err)
		}
	}
	fmt.Println(mails.Len(ctx))
	// Output:
	// attempt 1 to nobody
	// attempt 1 to Ada
	// attempt 2 to nobody
	// dead after 2 to nobody
	// 1 <nil>
}
