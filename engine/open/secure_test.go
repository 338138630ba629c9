package open

import (
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pawl-go/pawl/engine"
	"github.com/pawl-go/pawl/internal/testservers"
)

const right, secretText = "the right one", "s3cret"

// opens checks that the store can be used.
func opens(t *testing.T, rawURL string) {
	t.Helper()
	eng, err := Again(func() (engine.Engine, error) { return Open(t.Context(), rawURL) })
	if err != nil {
		t.Errorf("%s: %v", rawURL, err)
		return
	}
	if _, err := eng.Show(t.Context(), "nothing"); err != nil {
		t.Errorf("%s: %v", rawURL, err)
	}
	if err := eng.Close(); err != nil {
		t.Errorf("%s: close: %v", rawURL, err)
	}
}

// enters opens a session and closes it.
func enters(t *testing.T, rawURL string) {
	t.Helper()
	eng, err := Again(func() (engine.Engine, error) { return Open(t.Context(), rawURL) })
	if err != nil {
		t.Fatal(err)
	}
	defer eng.Close()
	s, err := eng.Open(t.Context(), engine.SessionOptions{TTL: 10 * time.Second})
	if err == nil {
		err = s.Close(t.Context())
	}
	if err != nil {
		t.Error(err)
	}
}

// alert begins the words of a TLS server about a certificate.
const alert = "remote error: tls: "

// refuses checks that one line without a secret gives the reason of the failure.
func refuses(t *testing.T, rawURL string, class error, says string) {
	t.Helper()
	missed := deadline(connectTimeout + time.Second)
	eng, err := Open(t.Context(), rawURL)
	for range 5 { // a server that hangs up may be faster than its alert
		if says != alert || err == nil || !strings.Contains(err.Error(), "connection reset by peer") {
			break
		}
		missed = deadline(connectTimeout + time.Second)
		eng, err = Open(t.Context(), rawURL)
	}
	if eng != nil {
		t.Errorf("%s: opened", rawURL)
		eng.Close()
		return
	}
	isError(t, rawURL, err, class, says)
	if missed() {
		t.Errorf("%s: told late", rawURL)
	}
}

// isError checks the class of an error, and that it is a line without a secret.
func isError(t *testing.T, rawURL string, err, class error, says string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: opened", rawURL)
		return
	}
	text := err.Error()
	if !errors.Is(err, class) || !strings.Contains(text, says) {
		t.Errorf("%s: %q, want %v: %q", rawURL, text, class, says)
	}
	if strings.Contains(text, secretText) || strings.Contains(text, right) || strings.Contains(text, "\n") {
		t.Errorf("%s: the error is %q", rawURL, text)
	}
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOpen_password: every scheme that takes a password reads it from the URL, a file and the
// environment.
func TestOpen_password(t *testing.T) {
	const ofSentinel = secretText + " of the Sentinel"
	redis := testservers.RedisUser(t, "app", right, "~*", "&*", "+@all").Addr
	sentinel := testservers.RedisObserver(t, redis, "--requirepass", ofSentinel).Addr
	t.Setenv("PAWL_TEST_RIGHT", right)
	t.Setenv("PAWL_TEST_WRONG", secretText)
	t.Setenv("PAWL_TEST_SENTINEL", ofSentinel)
	users := func() string { return testservers.RedisUser(t, "app", right, "~*", "&*", "+@all").Addr }
	ca := testservers.NewCA(t)
	postgres, mariadb := testservers.PostgresTLS(t, ca).Addr, testservers.MariaDB(t).Addr
	makeDatabaseUsers(t, ca, postgres, mariadb)
	for _, store := range []struct {
		url, params, wrong string
		both               bool // a user without a password is a mistake
	}{
		{"redis://app@" + redis, "", "WRONGPASS", true},
		{"redis://@" + testservers.Redis(t, "--requirepass", right).Addr, "", "WRONGPASS", false},
		{"redis+sentinel://app@" + sentinel + "/" + testservers.ObservedMaster, "&sentinel-password-env=PAWL_TEST_SENTINEL", "WRONGPASS", true},
		{"redlock://app@" + users() + "," + users() + "," + users(), "", "WRONGPASS", true},
		{"etcd://app@" + testservers.EtcdUser(t, "app", right, "pawl/").Addr, "", "invalid user ID or password", true},
		{"zk://app@" + testservers.SharedZooKeeper(t).Addr + "/private", "", "not authenticated", true},
		{"nats://app@" + testservers.NATSUser(t, "app", right).Addr, "", "Authorization Violation", false},
		{"postgres://app@" + postgres + "/postgres", "&tls=on&tls-ca=" + ca.File, "password authentication failed", false},
		{"mysql://app@" + mariadb + "/pawl", "", "Access denied", false},
	} {
		with := strings.NewReplacer("@", ":"+url.PathEscape(right)+"@").Replace
		if strings.HasPrefix(store.url, "zk:") { // the nodes name their users, and the first session makes the nodes
			enters(t, with(store.url))
		}
		opens(t, with(store.url)+"?"+strings.TrimPrefix(store.params, "&"))
		opens(t, store.url+"?password-env=PAWL_TEST_RIGHT"+store.params)
		opens(t, store.url+"?password-file="+file(t, "right", right+"\n")+store.params)
		refuses(t, store.url+"?password-env=PAWL_TEST_WRONG"+store.params, engine.ErrUnavailable, store.wrong)
		refuses(t, store.url+"?password-file="+file(t, "wrong", secretText)+store.params, engine.ErrUnavailable, store.wrong)

		refuses(t, store.url+"?password-env="+secretText+store.params, ErrURL, "the variable or file of the password parameter is empty or not there")
		refuses(t, store.url+"?password-file=/nowhere/"+secretText+store.params, ErrURL, "password-file: no such file or directory")
		refuses(t, store.url+"?password-file="+file(t, "empty", "\n")+store.params, ErrURL, "is empty or not there")
		refuses(t, store.url+"?password-file="+store.params, ErrURL, `"password-file" is empty`)
		refuses(t, store.url+"?password-file=a&password-env=b"+store.params, ErrURL, "give one")
		refuses(t, with(store.url)+"?password-env=PAWL_TEST_RIGHT"+store.params, ErrURL, "the password is given twice")
		refuses(t, store.url+"?pasword-env=x"+store.params, ErrURL, `unknown parameter "pasword-env": allowed is`)
		if store.both {
			refuses(t, store.url+"?"+strings.TrimPrefix(store.params, "&"), ErrURL, "it has a user and no password")
		}
	}
	master := "redis+sentinel://app@" + sentinel + "/" + testservers.ObservedMaster + "?password-env=PAWL_TEST_RIGHT"
	opens(t, master+"&sentinel-password-file="+file(t, "sentinel", ofSentinel+"\r\n"))
	refuses(t, master, engine.ErrUnavailable, "NOAUTH")
	refuses(t, master+"&sentinel-password-env=PAWL_TEST_WRONG", engine.ErrUnavailable, "WRONGPASS")
	refuses(t, master+"&sentinel-password-env="+secretText, ErrURL, "the variable or file of the sentinel-password parameter is empty")
	refuses(t, master+"&sentinel-user=x", ErrURL, "sentinel-user has no password")
}

// makeDatabaseUsers makes the user app.
func makeDatabaseUsers(t *testing.T, ca *testservers.CA, postgres, mariadb string) {
	t.Helper()
	config, err := pgx.ParseConfig("postgres://postgres@" + postgres + "/postgres")
	if err != nil {
		t.Fatal(err)
	}
	config.Fallbacks, config.TLSConfig = nil, ca.Client()
	config.TLSConfig.ServerName = "localhost"
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE ROLE app LOGIN SUPERUSER PASSWORD '"+right+"'"); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("mysql", testservers.MariaDBConfig(mariadb).FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, statement := range []string{"CREATE USER app IDENTIFIED BY '" + right + "'", "GRANT ALL ON pawl.* TO app"} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOpen_TLS: every scheme that speaks TLS takes the same parameters.
func TestOpen_TLS(t *testing.T) {
	t.Parallel()
	ca, other := testservers.NewCA(t), testservers.NewCA(t)
	mine, stranger := ca.Issue("client"), other.Issue("client")
	shows := func(c testservers.Certificate) string { return "&tls-cert=" + c.CertFile + "&tls-key=" + c.KeyFile }
	type urls struct{ open, closed, needed, strange string } // for a client with and without a certificate, and the texts about no certificate and a wrong one
	postgres, mariadb := testservers.PostgresTLS(t, ca).Addr, testservers.MariaDBTLS(t, ca).Addr
	redlock := "redlock:" + testservers.RedisTLS(t, ca).Addr + "," + testservers.RedisTLS(t, ca).Addr + "," + testservers.RedisTLS(t, ca).Addr + "?tls=on&"
	for _, store := range []urls{
		{
			"rediss://" + testservers.RedisTLS(t, ca).Addr + "?",
			"rediss://" + testservers.RedisTLS(t, ca, "--tls-auth-clients", "yes").Addr + "?", alert, alert,
		},
		{
			"etcds://" + testservers.EtcdTLS(t, ca).Addr + "?",
			"etcds://" + testservers.EtcdTLS(t, ca, "--client-cert-auth", "--trusted-ca-file", ca.File).Addr + "?", alert, alert,
		},
		{"postgres://postgres@" + postgres + "/postgres?tls=on&", "postgres://postgres@" + postgres + "/template1?tls=on&", "valid client certificate", alert},
		{"mysql://root@" + mariadb + "/pawl?tls=on&", "mysql://shown@" + mariadb + "/pawl?tls=on&", "Access denied", ""},
		{redlock, "", "", ""},
	} {
		plain, open, closed := store.open, store.open+"tls-ca=", store.closed+"tls-ca="
		opens(t, open+ca.File)
		opens(t, open+ca.File+"&tls-server-name=localhost")
		opens(t, open+ca.File+shows(mine))
		refuses(t, open+other.File, engine.ErrUnavailable, "signed by unknown authority")
		refuses(t, strings.TrimRight(plain, "?&"), engine.ErrUnavailable, "signed by unknown authority")
		refuses(t, open+ca.File+"&tls-server-name=example.com", engine.ErrUnavailable, "is valid for localhost, not example.com")
		if store.closed != "" {
			opens(t, closed+ca.File+shows(mine))
			refuses(t, closed+ca.File, engine.ErrUnavailable, store.needed)
			refuses(t, closed+ca.File+shows(stranger), engine.ErrUnavailable, store.strange)
		}
		refuses(t, open+"/nowhere/ca.pem", ErrURL, "tls-ca: open /nowhere/ca.pem: no such file or directory")
		refuses(t, open+mine.KeyFile, ErrURL, "has no certificate in PEM")
		refuses(t, open+ca.File+"&tls-cert="+mine.CertFile, ErrURL, "tls-cert and tls-key belong together")
		refuses(t, open+ca.File+"&tls-cert=/nowhere&tls-key="+mine.KeyFile, ErrURL, "tls-cert and tls-key: open /nowhere: no such file")
		refuses(t, open+ca.File+"&tls-cert="+mine.CertFile+"&tls-key="+stranger.KeyFile, ErrURL, "private key does not match")
		refuses(t, open+ca.File+"&tls-insecure=1", ErrURL, `unknown parameter "tls-insecure"`)
	}
	refuses(t, "redis://h?tls-ca="+ca.File, ErrURL, `unknown parameter "tls-ca"`)
	refuses(t, "etcd://h?tls-ca="+ca.File, ErrURL, `unknown parameter "tls-ca"`)
}

// TestOpen_TLS_on_one_side: the error names the wrong scheme, and the client does not send the
// password in the clear.
func TestOpen_TLS_on_one_side(t *testing.T) {
	t.Parallel()
	ca := testservers.NewCA(t)
	for rawURL, says := range map[string]string{
		"redis://u:s3cret@" + testservers.RedisTLS(t, ca).Addr: "connection reset by peer",
		"etcd://" + testservers.EtcdTLS(t, ca).Addr:            "does the server speak TLS only?",
		"etcd://u:s3cret@" + testservers.EtcdTLS(t, ca).Addr:   "does the server speak TLS only?",
		"rediss://u:s3cret@" + testservers.SharedRedis(t).Addr: "does the server speak TLS?",
		"etcds://u:s3cret@" + testservers.SharedEtcd(t).Addr:   "TLS",
	} {
		t.Run(strings.SplitN(rawURL, "127", 2)[0], func(t *testing.T) {
			t.Parallel()
			refuses(t, rawURL, engine.ErrUnavailable, says)
		})
	}
}

// TestOpen_Redis_of_another_kind: a scheme is for one kind of server.
func TestOpen_Redis_of_another_kind(t *testing.T) {
	t.Parallel()
	alone, node := testservers.SharedRedis(t).Addr, testservers.RedisCluster(t)[0].Addr
	sentinel := testservers.RedisObserver(t, alone).Addr
	refuses(t, "redis://u:s3cret@"+alone+","+alone, ErrURL, "it is for one server")
	refuses(t, "redis://"+node, ErrURL, "the scheme is redis+cluster")
	refuses(t, "redis://"+sentinel, ErrURL, "the scheme is redis+sentinel")
	refuses(t, "redis+sentinel://"+sentinel, ErrURL, "the name that the Sentinels have for the master is missing")
	refuses(t, "redis+sentinel://"+sentinel+"/"+testservers.ObservedMaster+"/x", ErrURL, `the database is not a number`)
	refuses(t, "redis+sentinel://"+sentinel+"/nobody", engine.ErrUnavailable, "No such master with that name")
	refuses(t, "redis+sentinel://"+alone+"/mymaster", engine.ErrUnavailable, "unknown command")
	refuses(t, "redis+sentinel://u:s3cret@127.0.0.1:1,127.0.0.1:2/mymaster", engine.ErrUnavailable, "connection refused")
	opens(t, "redis+sentinel://127.0.0.1:1,"+sentinel+"/"+testservers.ObservedMaster+"/2?tls=off")
	refuses(t, "redis+sentinel://"+sentinel+"/x?tls=insecure", ErrURL, "the parameter tls is on or off")
	refuses(t, "redis+sentinel://"+sentinel+"/x?tls-ca=x", ErrURL, `parameter "tls-ca" is for TLS, which is off without tls=on`)
}
