// Package threephase commits a transaction over several agents: on all of them, or on none, also while some agents are dead or cut
// off. This is three-phase commit that does not split. The agents that are left finish the transaction, if they are a majority.
//
//	log, err := threephase.NewLog(dialect.SQLite, db, nil)
//	bank, err := threephase.Database(dtx.PostgreSQL("bank", bankDB), transfer)
//	peers := map[string]string{"stock": "http://stock:7654/", "witness": "http://witness:7654/"}
//	agent, err := threephase.New(ctx, log, "bank", peers, bank, nil)
//	go http.Serve(listener, agent)
//	...
//	id, err := agent.Commit(ctx, map[string][]byte{"bank": payload, "stock": other})
//
// # Agents
//
// An [Agent] is a goroutine or a process with a [Log] of its own, and the addresses of its peers. There are 3 to 7 agents, and each knows all
// others. An agent may have a [Handler], such as a database. An agent without a handler is a witness: two databases need a witness, so that a
// majority is left when one agent dies. Each agent has a log of its own, which no other agent reads.
//
// # What is promised
//
//   - All handlers commit, or all abort, whichever processes die, whichever messages are lost, late or repeated, and wherever the
//     network is cut. No clock is trusted for that.
//   - A majority of agents that reach one another decides, without the others, within three time-outs. A minority waits, with its rows locked.
//   - An agent that restarts reads its log and asks its peers. The agent never decides alone after it has voted.
//
// The decisions are those of the enhanced three-phase commit of Keidar and Dolev, which the tests explore. Mode [Classic] is the
// three-phase commit of textbooks, whose decisions split in a partition. That mode is there to show the split.
//
// # What is not promised
//
// All agents have to vote. So while an agent is down, open transactions are finished and new ones abort. A log that is
// lost, or restored from a copy, has forgotten votes. Peers refuse an agent with a new log until an operator calls [Log.Trust]. No agent
// can see that a log is an old copy. A database that forgets its prepared work loses its half, and nothing notices after Trust.
//
// Messages have no signature. Without mutual TLS in the user's server and [Options].Client, any sender that reaches an agent can vote, decide
// and send payloads. Only messages of browsers are refused, because a web page reaches what its reader's machine reaches. [Options].Authenticate ties a certificate to the name of an agent.
//
// Package dtx needs no agents: there one log decides, and branches wait while it is away. This package is for transactions that must
// not wait for one machine. The price is agents, one more round trip, and several flushed writes an agent.
package threephase
