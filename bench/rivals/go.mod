module github.com/pawl-go/pawl/bench/rivals

go 1.25.0

require (
	github.com/bwmarrin/snowflake v0.3.0
	github.com/google/uuid v1.6.0
	github.com/pawl-go/pawl v0.0.0
	github.com/sony/sonyflake v1.2.0
)

replace github.com/pawl-go/pawl => ../..
