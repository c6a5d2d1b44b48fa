package lake

import (
	"context"
	"crypto/tls"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"
	icebergsql "github.com/apache/iceberg-go/catalog/sql"
	"github.com/apache/iceberg-go/table"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weirlake/weir/internal/failure"
)

const (
	// pgConnectTimeout bounds one try to connect, unless the address says
	// connect_timeout.
	pgConnectTimeout = 10 * time.Second
	// pgLockTimeout bounds how long a statement of ours waits for a lock that
	// somebody else holds on the catalog's tables.
	pgLockTimeout = 10 * time.Second
	// pgCallTimeout bounds one look-up or one swap, so that a line that went
	// dead without a word does not hold a commit for ever.
	pgCallTimeout = 30 * time.Second
	// pgIdleTimeout is how long an unused connection is kept.
	pgIdleTimeout = 5 * time.Minute
	// pgSetUpLock is the key of the advisory lock under which the catalog's
	// tables are made: CREATE TABLE IF NOT EXISTS is not safe against itself.
	pgSetUpLock = 0x77656972 // "weir"
)

// PostgresSchemes begin the addresses of a catalog on Postgres; the ones with a
// driver are SQLAlchemy's, as PyIceberg is given them.
var PostgresSchemes = []string{"postgres://", "postgresql://", "postgresql+psycopg2://", "postgresql+psycopg://"}

// IsPostgres reports whether a catalog's address is that of a Postgres.
func IsPostgres(uri string) bool {
	for _, s := range PostgresSchemes {
		if strings.HasPrefix(uri, s) {
			return true
		}
	}
	return false
}

// pgPointer holds the table locations in the tables that PyIceberg and Java's
// JDBC catalog use, so that Spark and PyIceberg read the same database.
type pgPointer struct {
	db    *sql.DB
	name  string
	where string
}

func openPostgres(ctx context.Context, cfg Config, props iceberg.Properties) (*Catalog, error) {
	conf, err := pgConfig(cfg.URI)
	if err != nil {
		return nil, err
	}
	where := fmt.Sprintf("the catalog database %s on %s", conf.Database, net.JoinHostPort(conf.Host, strconv.Itoa(int(conf.Port))))
	db := stdlib.OpenDB(*conf)
	db.SetMaxOpenConns(maxConnections)
	db.SetMaxIdleConns(maxConnections)
	db.SetConnMaxIdleTime(pgIdleTimeout)
	p := &pgPointer{db: db, name: cfg.Name, where: where}
	var inner *icebergsql.Catalog
	err = cfg.wait(ctx, where, func(ctx context.Context) error {
		if err := p.setUp(ctx, cfg); err != nil {
			return p.opening(err)
		}
		// The tables are there: the library only looks at their columns.
		own := iceberg.Properties{"init_catalog_tables": "false"}
		for k, v := range props {
			own[k] = v
		}
		dialectMu.Lock()
		defer dialectMu.Unlock()
		c, err := icebergsql.NewCatalog(cfg.Name, db, icebergsql.Postgres, own)
		inner = c
		return p.opening(err)
	})
	if err != nil {
		db.Close()
		return nil, err
	}
	return &Catalog{
		inner:    inner,
		pointer:  p,
		props:    props,
		parsed:   &parsed{byTable: map[string]parsedMetadata{}},
		closers:  []io.Closer{inner, db},
		classify: p.configFailure,
	}, nil
}

// pgConfig is the driver's configuration for an address. Neither the address
// nor the driver's complaint about it is repeated: both may hold the password.
func pgConfig(uri string) (*pgx.ConnConfig, error) {
	for _, s := range PostgresSchemes {
		if rest, ok := strings.CutPrefix(uri, s); ok {
			uri = "postgres://" + rest
			break
		}
	}
	conf, err := pgx.ParseConfig(uri)
	if err != nil {
		return nil, failure.New(failure.Config, "the address of the Postgres catalog cannot be read").
			WithHint("write postgres://USER:PASSWORD@HOST:PORT/DATABASE; characters like @ : / ? # %% in the password are written as %%40 %%3A %%2F %%3F %%23 %%25")
	}
	if conf.ConnectTimeout <= 0 {
		conf.ConnectTimeout = pgConnectTimeout
	}
	if conf.RuntimeParams["application_name"] == "" {
		conf.RuntimeParams["application_name"] = "weir"
	}
	// No prepared statements: a pooler that hands each transaction to another
	// session does not know them there.
	conf.DefaultQueryExecMode = pgx.QueryExecModeExec
	return conf, nil
}

// pgColumns are the columns of a catalog's two tables that are used here.
const (
	pgTablesProbe     = `SELECT catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location FROM iceberg_tables LIMIT 0`
	pgNamespacesProbe = `SELECT catalog_name, namespace, property_key, property_value FROM iceberg_namespace_properties LIMIT 0`
)

// pgTables makes the two tables as Java's JDBC catalog (schema version 1) and
// PyIceberg do.
var pgTables = []string{
	`CREATE TABLE IF NOT EXISTS iceberg_tables (
		catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL, table_name VARCHAR(255) NOT NULL,
		metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000), iceberg_type VARCHAR(5),
		PRIMARY KEY (catalog_name, table_namespace, table_name))`,
	`CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
		catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
		property_key VARCHAR(255) NOT NULL, property_value VARCHAR(1000),
		PRIMARY KEY (catalog_name, namespace, property_key))`,
}

// setUp makes the catalog's tables where they are missing and checks that they
// are a catalog's, that this user may use them, and the catalog's name.
func (p *pgPointer) setUp(ctx context.Context, cfg Config) error {
	tx, err := p.begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // harmless after the commit
	var there bool
	const exist = `SELECT to_regclass('iceberg_tables') IS NOT NULL AND to_regclass('iceberg_namespace_properties') IS NOT NULL`
	if err := tx.QueryRowContext(ctx, exist).Scan(&there); err != nil {
		return err
	}
	if !there {
		if cfg.ReadOnly {
			return failure.Wrap(failure.Config, ErrNoCatalog, "%s holds no Iceberg catalog yet", p.where).WithHint("run the pipeline first, or correct catalog.uri")
		}
		if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(pgSetUpLock)); err != nil {
			return err
		}
		for _, ddl := range pgTables {
			if _, err := tx.ExecContext(ctx, ddl); err != nil {
				return fmt.Errorf("make the catalog's tables: %w", err)
			}
		}
	}
	for _, probe := range []string{pgTablesProbe, pgNamespacesProbe} {
		if _, err := tx.ExecContext(ctx, probe); err != nil {
			return err
		}
	}
	if err := p.checkPrivileges(ctx, tx, cfg.ReadOnly); err != nil {
		return err
	}
	if !cfg.ReadOnly {
		var standby bool
		if err := tx.QueryRowContext(ctx, `SELECT current_setting('transaction_read_only') = 'on'`).Scan(&standby); err != nil {
			return err
		}
		if standby {
			return errors.New("the server is read-only, as a standby is")
		}
	}
	names, err := catalogNames(ctx, tx)
	if err != nil {
		return err
	}
	if err := cfg.checkName(p.where, names); err != nil {
		return err
	}
	return tx.Commit()
}

func (p *pgPointer) checkPrivileges(ctx context.Context, tx *sql.Tx, readOnly bool) error {
	need := []string{"SELECT", "INSERT", "UPDATE"}
	if readOnly {
		need = need[:1]
	}
	for _, tbl := range []string{"iceberg_tables", "iceberg_namespace_properties"} {
		for _, privilege := range need {
			if tbl == "iceberg_namespace_properties" && privilege == "UPDATE" {
				continue // namespaces are made and read, never changed
			}
			var may bool
			if err := tx.QueryRowContext(ctx, `SELECT has_table_privilege($1::text, $2::text)`, tbl, privilege).Scan(&may); err != nil {
				return err
			}
			if !may {
				return failure.New(failure.Config, "%s: the user has no %s permission on table %s", p.where, privilege, tbl).
					WithHint("GRANT %s ON iceberg_tables, iceberg_namespace_properties TO the user of catalog.uri", strings.Join(need, ", "))
			}
		}
	}
	return nil
}

// begin starts a transaction whose waits are bounded and whose commit is
// durable when it is acknowledged: with synchronous_commit off, a killed server
// forgets commits that it has confirmed, and the table would go backwards.
func (p *pgPointer) begin(ctx context.Context) (*sql.Tx, error) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, `SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true),
		set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)`,
		strconv.FormatInt(pgLockTimeout.Milliseconds(), 10), strconv.FormatInt(pgCallTimeout.Milliseconds(), 10))
	if err != nil {
		return nil, errors.Join(err, tx.Rollback())
	}
	return tx, nil
}

func (p *pgPointer) location(ctx context.Context, ident table.Identifier) (string, error) {
	if len(ident) < 2 {
		return "", fmt.Errorf("table %q has no namespace", Name(ident))
	}
	ctx, cancel := context.WithTimeout(ctx, pgCallTimeout)
	defer cancel()
	ns, name := splitName(ident)
	var loc sql.NullString
	var err error
	// A server that was restarted leaves the pool full of dead connections; each
	// try discards one, and the next dials anew.
	for range maxConnections + 1 {
		err = p.db.QueryRowContext(ctx,
			`SELECT metadata_location FROM iceberg_tables WHERE catalog_name = $1 AND table_namespace = $2 AND table_name = $3`,
			p.name, ns, name).Scan(&loc)
		if err == nil || errors.Is(err, sql.ErrNoRows) || ctx.Err() != nil || failure.Is(p.configFailure(err), failure.Config) {
			break
		}
	}
	switch {
	case errors.Is(err, sql.ErrNoRows) || (err == nil && !loc.Valid):
		return "", fmt.Errorf("%w: %s", ErrNoTable, Name(ident))
	case err != nil:
		return "", fmt.Errorf("look up %s in %s: %w", Name(ident), p.where, p.configFailure(err))
	}
	return loc.String, nil
}

// swap is one transaction. Until COMMIT is sent nothing can be committed; from
// then on every error but the server's own word leaves the outcome open, even a
// refusal: a server that is shut down while it waits for its standby has
// committed already.
func (p *pgPointer) swap(ctx context.Context, ident table.Identifier, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, pgCallTimeout)
	defer cancel()
	tx, err := p.begin(ctx)
	if err != nil {
		return fmt.Errorf("begin a transaction for %s in %s: %w", Name(ident), p.where, p.configFailure(err))
	}
	defer tx.Rollback() //nolint:errcheck // harmless after the commit
	ns, name := splitName(ident)
	res, err := tx.ExecContext(ctx,
		`UPDATE iceberg_tables SET metadata_location = $1, previous_metadata_location = $2
		 WHERE catalog_name = $3 AND table_namespace = $4 AND table_name = $5 AND metadata_location = $2`,
		to, from, p.name, ns, name)
	if err != nil {
		return fmt.Errorf("update %s in %s: %w", Name(ident), p.where, p.configFailure(err))
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("update %s in %s: %w", Name(ident), p.where, err)
	}
	if n == 0 {
		return fmt.Errorf("%w: another commit to %s came first", ErrConflict, Name(ident))
	}
	switch err := tx.Commit(); {
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("commit of %s in %s: %w", Name(ident), p.where, err)
	case err != nil:
		return fmt.Errorf("%w: commit of %s in %s: %w", ErrUnknown, Name(ident), p.where, err)
	}
	return nil
}

// configFailure classifies what no further try changes; any other error comes
// back as it is, for the caller to try again.
func (p *pgPointer) configFailure(err error) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		return err
	}
	refuse := func(format string, args ...any) *failure.Error {
		return failure.New(failure.Config, "%s: %s", p.where, fmt.Sprintf(format, args...))
	}
	switch e.Code {
	case "28P01", "28000":
		return refuse("the server refuses the user: %s", e.Message).WithHint("check the user and the password in catalog.uri, and the server's pg_hba.conf")
	case "3D000":
		return refuse("%s", e.Message).WithHint("CREATE DATABASE, or correct the database's name in catalog.uri")
	case "42501":
		return refuse("missing permission: %s", e.Message).
			WithHint("the user needs USAGE on the schema and SELECT, INSERT, UPDATE on iceberg_tables and iceberg_namespace_properties; CREATE on the schema where these tables are still to be made")
	case "42P01", "42703", "42809", "3F000":
		return refuse("this is not the database of an Iceberg SQL catalog: %s", e.Message).
			WithHint("give catalog.uri a database of its own, or one that PyIceberg or Java's JDBC catalog made")
	}
	return err
}

// opening classifies an error of the first contact: what is not certainly
// wrong is not there yet, and waited for.
func (p *pgPointer) opening(err error) error {
	if err == nil {
		return nil
	}
	err = p.configFailure(err)
	var classified *failure.Error
	var certificate *tls.CertificateVerificationError
	switch {
	case errors.As(err, &classified):
		return err
	case errors.As(err, &certificate), strings.Contains(err.Error(), "server refused TLS connection"):
		return failure.Wrap(failure.Config, err, "%s", p.where).WithHint("check sslmode and sslrootcert in catalog.uri")
	}
	return failure.Wrap(failure.Unreachable, err, "%s does not answer", p.where).
		WithHint("start it, or correct host and port in catalog.uri; a database that was just started needs a moment")
}
