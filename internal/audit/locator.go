package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// locateTimeout bounds one question to a catalog's server.
	locateTimeout = 30 * time.Second
	// answerBytesMax bounds an answer of a REST catalog: it holds a table's
	// whole metadata.
	answerBytesMax = 1 << 30
)

// PostgresCatalog is Iceberg's SQL catalog in a Postgres database.
type PostgresCatalog struct {
	// URI is the database's address; it is never shown.
	URI string
	// Name is the catalog's name in the rows; "weir" where empty.
	Name string
}

// MetadataLocation implements Locator, in a session of its own that may only
// read.
func (c PostgresCatalog) MetadataLocation(ctx context.Context, table string) (string, error) {
	i := strings.LastIndex(table, ".")
	if i <= 0 {
		return "", failure.New(failure.Config, "table %q: want namespace.table", table)
	}
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	uri := c.URI
	if scheme, rest, ok := strings.Cut(uri, "://"); ok && strings.HasPrefix(scheme, "postgresql+") {
		uri = "postgresql://" + rest
	}
	name := c.Name
	if name == "" {
		name = "weir"
	}
	db, err := sql.Open("pgx", uri)
	if err != nil {
		return "", failure.New(failure.Config, "the address of the Postgres catalog cannot be read")
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "catalog on Postgres")
	}
	defer tx.Rollback() //nolint:errcheck // nothing was written
	var location string
	err = tx.QueryRowContext(ctx,
		`SELECT metadata_location FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3`,
		name, table[:i], table[i+1:]).Scan(&location)
	if errors.Is(err, sql.ErrNoRows) || (err != nil && strings.Contains(err.Error(), "SQLSTATE 42P01")) {
		return "", &NoTableError{Table: table, Catalog: "on Postgres"}
	}
	if err != nil {
		return "", failure.Wrap(failure.Unreachable, err, "catalog on Postgres, table %s", table)
	}
	return location, nil
}

// RESTCatalog is an Iceberg REST catalog, asked with plain HTTP. The secrets
// among its fields are never shown.
type RESTCatalog struct {
	URI, Warehouse    string
	Credential, Token string
	OAuth2ServerURI   string
	Scope             string
	Headers           map[string]string
}

// MetadataLocation implements Locator: a token if one is needed, the server's
// prefix, the table.
func (c RESTCatalog) MetadataLocation(ctx context.Context, table string) (string, error) {
	parts := strings.Split(table, ".")
	if len(parts) < 2 {
		return "", failure.New(failure.Config, "table %q: want namespace.table", table)
	}
	ctx, cancel := context.WithTimeout(ctx, locateTimeout)
	defer cancel()
	base := strings.TrimSuffix(c.URI, "/") + "/v1"
	header, err := c.headers(ctx, base)
	if err != nil {
		return "", err
	}
	var config struct{ Defaults, Overrides map[string]string }
	query := ""
	if c.Warehouse != "" {
		query = "?" + url.Values{"warehouse": {c.Warehouse}}.Encode()
	}
	if _, err := c.get(ctx, base+"/config"+query, header, &config); err != nil {
		return "", err
	}
	for _, layer := range []map[string]string{config.Overrides, config.Defaults} {
		if p := layer["prefix"]; p != "" {
			base += "/" + p
			break
		}
	}
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	var doc struct {
		Location string `json:"metadata-location"`
	}
	last := len(parts) - 1
	found, err := c.get(ctx, base+"/namespaces/"+strings.Join(parts[:last], "%1F")+"/tables/"+parts[last], header, &doc)
	switch {
	case err != nil:
		return "", err
	case !found:
		return "", &NoTableError{Table: table, Catalog: "behind REST"}
	case doc.Location == "":
		return "", failure.New(failure.Unreachable, "the REST catalog gives no metadata location for %s", table)
	}
	return doc.Location, nil
}

func (c RESTCatalog) headers(ctx context.Context, base string) (http.Header, error) {
	h := http.Header{}
	for k, v := range c.Headers {
		h.Set(k, v)
	}
	token := c.Token
	if token == "" && c.Credential != "" {
		endpoint := c.OAuth2ServerURI
		if endpoint == "" {
			endpoint = base + "/oauth/tokens"
		}
		id, secret, ok := strings.Cut(c.Credential, ":")
		if !ok {
			id, secret = "", c.Credential
		}
		form := url.Values{"grant_type": {"client_credentials"}, "client_secret": {secret}, "scope": {c.Scope}}
		if id != "" {
			form.Set("client_id", id)
		}
		if c.Scope == "" {
			form.Set("scope", "catalog")
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
		if err != nil {
			return nil, failure.New(failure.Config, "the address of the token server cannot be read")
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		var doc struct {
			Token string `json:"access_token"`
		}
		if _, err := answerOf(req, &doc); err != nil {
			return nil, err
		}
		token = doc.Token
	}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	return h, nil
}

func (c RESTCatalog) get(ctx context.Context, address string, header http.Header, into any) (found bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return false, failure.New(failure.Config, "the address of the REST catalog cannot be read")
	}
	req.Header = header.Clone()
	return answerOf(req, into)
}

// answerOf decodes a JSON answer; not found is no error.
func answerOf(req *http.Request, into any) (found bool, err error) {
	where := req.URL.Redacted()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, failure.Wrap(failure.Unreachable, err, "REST catalog")
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		// Only a catalog's own word means that there is no such table.
		if strings.Contains(res.Header.Get("Content-Type"), "json") {
			return false, nil
		}
		return false, failure.New(failure.Unreachable, "REST catalog: %s is not a catalog's (HTTP 404)", where)
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusBadRequest:
		return false, failure.New(failure.Config, "REST catalog: %s is refused (HTTP %d)", where, res.StatusCode).
			WithHint("check the credential and the warehouse in the pipeline's catalog section")
	default:
		return false, failure.New(failure.Unreachable, "REST catalog: %s: HTTP %d", where, res.StatusCode)
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, answerBytesMax)).Decode(into); err != nil {
		return false, failure.Wrap(failure.Unreachable, fmt.Errorf("decode the answer: %w", err), "REST catalog: %s", where)
	}
	return true, nil
}
