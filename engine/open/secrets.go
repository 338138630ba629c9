package open

import (
	"errors"
	"net/url"
	"os"
	"strings"
)

// passwordParams are the parameters of every scheme with a password, because others can see a URL
// in a list of processes or a log.
var passwordParams = []string{"password-env", "password-file"}

// password puts a password from elsewhere into the URL, so that every opener finds it there.
func password(u *url.URL) error {
	text, given, err := secret(u, "password")
	if err != nil || !given {
		return err
	}
	if _, twice := u.User.Password(); twice {
		return wrong("the password is given twice, in the URL and by parameter")
	}
	u.User = url.UserPassword(u.User.Username(), text)
	return nil
}

// secret reads the secret of the parameters NAME-env and NAME-file. No error repeats their values,
// because a user may have put the secret itself there.
func secret(u *url.URL, name string) (text string, given bool, err error) {
	params := u.Query()
	env, file := params.Get(name+"-env"), params.Get(name+"-file")
	switch {
	case env != "" && file != "":
		return "", false, wrong("%[1]s-env and %[1]s-file are two passwords: give one", name)
	case env != "":
		text = os.Getenv(env)
	case file != "":
		content, err := os.ReadFile(file)
		if err != nil {
			return "", false, wrong("%s-file: %v", name, errors.Unwrap(err)) // the outer error quotes the name
		}
		text = strings.TrimRight(string(content), "\r\n")
	default:
		return "", false, nil
	}
	if text == "" {
		return "", false, wrong("the variable or file of the %s parameter is empty or not there", name)
	}
	return text, true, nil
}

// login returns user and password. A user alone is a mistake.
func login(u *url.URL) (user, password string, err error) {
	password, given := u.User.Password()
	if user = u.User.Username(); user != "" && !given {
		return "", "", errNoPassword
	}
	return user, password, nil
}

// loginOfBoth is for a store whose client ignores a user without a password, and the reverse.
func loginOfBoth(u *url.URL) (user, password string, err error) {
	user, password, err = login(u)
	switch {
	case err == nil && user != "" && password == "":
		err = errNoPassword
	case err == nil && user == "" && password != "":
		err = wrong("it has a password and no user")
	}
	return user, password, err
}

var errNoPassword = wrong("it has a user and no password")
