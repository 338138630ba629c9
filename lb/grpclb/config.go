package grpclb

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/serviceconfig"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/lb"
)

// config is the object "pawl" of a service config.
type config struct {
	serviceconfig.LoadBalancingConfig `json:"-"`

	Policy     policy   `json:"policy"`
	HashHeader string   `json:"hashHeader"`
	Bound      float64  `json:"bound"`
	Tau        duration `json:"tau"`
	EjectAfter int      `json:"ejectAfter"`
	EjectFor   duration `json:"ejectFor"`
	SlowStart  duration `json:"slowStart"`
	Panic      float64  `json:"panic"`
}

type policy string

type duration time.Duration

// UnmarshalJSON implements [json.Unmarshaler].
func (d *duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%w: a duration is %s: a text such as \"10s\" is allowed", pawl.ErrInvalid, text)
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%w: a duration is %q: a text such as \"10s\" is allowed", pawl.ErrInvalid, s)
	}
	*d = duration(parsed)
	return nil
}

// ParseConfig implements [google.golang.org/grpc/balancer.ConfigParser].
func (builder) ParseConfig(text json.RawMessage) (serviceconfig.LoadBalancingConfig, error) {
	c := &config{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(c); err != nil {
		return nil, fmt.Errorf("read the config of balancer %q: %w", Name, err)
	}
	if _, _, err := c.open(nil); err != nil {
		return nil, fmt.Errorf("read the config of balancer %q: %w", Name, err)
	}
	return c, nil
}

// open makes an empty set and its balancer. returned is that of [lb.SetOptions].
func (c *config) open(returned func()) (*lb.Set, *lb.Balancer, error) {
	p, err := lb.ParsePolicy(string(c.Policy))
	if err != nil {
		return nil, nil, err
	}
	if p == lb.SourceHash && c.HashHeader == "" {
		return nil, nil, fmt.Errorf("%w: hashHeader is empty: policy %v needs a header", pawl.ErrInvalid, p)
	}
	set, err := lb.NewSet(&lb.SetOptions{EjectAfter: c.EjectAfter, EjectFor: time.Duration(c.EjectFor), SlowStart: time.Duration(c.SlowStart), Panic: c.Panic,
		Returned: returned})
	if err != nil {
		return nil, nil, err
	}
	b, err := lb.New(set, p, &lb.Options{Bound: c.Bound, Tau: time.Duration(c.Tau)})
	return set, b, err
}

// alike reports whether the end of a pick says nothing but how the node did. Other policies count each pick.
func (c *config) alike() bool {
	switch p, _ := lb.ParsePolicy(string(c.Policy)); p { //nolint:errcheck // open has parsed it
	case lb.RoundRobin, lb.WeightedRoundRobin, lb.Random, lb.WeightedRandom:
		return true
	case lb.SourceHash:
		return c.Bound == 0
	}
	return false
}
