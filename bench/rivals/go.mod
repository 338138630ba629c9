module github.com/pawl-go/pawl/bench/rivals

go 1.25.0

require (
	github.com/bwmarrin/snowflake v0.3.0
	github.com/go-kratos/kratos/v2 v2.8.3
	github.com/google/uuid v1.6.0
	github.com/pawl-go/pawl v0.0.0
	github.com/sony/sonyflake v1.2.0
	github.com/vulcand/oxy/v2 v2.0.0
	google.golang.org/grpc v1.71.1
)

require (
	github.com/HdrHistogram/hdrhistogram-go v1.1.2 // indirect
	github.com/segmentio/fasthash v1.0.3 // indirect
	golang.org/x/net v0.56.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
	golang.org/x/text v0.41.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20250303144028-a0af3efb3deb // indirect
	google.golang.org/protobuf v1.36.5 // indirect
)

replace github.com/pawl-go/pawl => ../..
