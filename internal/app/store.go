package app

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/weirlake/weir/internal/checkpoint"
	"github.com/weirlake/weir/internal/clock"
	"github.com/weirlake/weir/internal/failure"
	"github.com/weirlake/weir/internal/marker"
	"github.com/weirlake/weir/internal/objstore"
	"github.com/weirlake/weir/internal/objstore/cloud"
	"github.com/weirlake/weir/internal/objstore/s3"
	"github.com/weirlake/weir/internal/pipeline"
)

// objectsInFlight bounds the objects of a checkpoint that are moved at once.
const objectsInFlight = 8

// StoreConfigs are the settings of the pipeline's buckets on S3.
func StoreConfigs(p *pipeline.Pipeline) []s3.Config {
	var out []s3.Config
	for _, s := range p.Stores {
		if s.Type != pipeline.StoreS3 && s.Type != "" {
			continue
		}
		c := s3.Config{
			Bucket: s.Bucket, Endpoint: s.Endpoint, Region: s.Region, PathStyle: s.PathStyle, CAFile: s.CAFile,
			Credentials: s3.Credentials{AccessKeyID: s.AccessKeyID.Reveal(), SecretAccessKey: s.SecretAccessKey.Reveal(), SessionToken: s.SessionToken.Reveal()},
			SSE:         s.SSE, KMSKeyID: s.KMSKeyID,
		}
		if r := s.AssumeRole; r != nil {
			c.AssumeRole = &s3.AssumeRole{RoleARN: r.RoleARN, ExternalID: r.ExternalID.Reveal(), SessionName: r.SessionName}
		}
		out = append(out, c)
	}
	return out
}

// openStores makes the clients' settings; none is opened before it is used.
func (a *App) openStores() error {
	if a.stores != nil {
		return nil
	}
	stores, err := s3.NewStores(StoreConfigs(a.P)...)
	if err != nil {
		return err
	}
	clouds, err := cloud.NewStores(CloudConfigs(a.P)...)
	if err != nil {
		return err
	}
	a.stores, a.clouds = stores, clouds
	return nil
}

// openCheckpoint opens the store at a checkpoint's location.
func (a *App) openCheckpoint(ctx context.Context, location string) (objstore.Store, error) {
	if !pipeline.Remote(location) {
		return objstore.OpenLocal(location, objstore.LocalOptions{Clock: a.opts.Clock})
	}
	if err := a.openStores(); err != nil {
		return nil, err
	}
	if cloud.IsLocation(location) {
		return openCloud(ctx, a.clouds, location, a.opts.Clock)
	}
	at, err := s3.ParseLocation(location)
	if err != nil {
		return nil, err
	}
	c, err := a.stores.Client(ctx, at.Bucket)
	if err != nil {
		return nil, err
	}
	return c.NewStore(at, a.opts.Clock), nil
}

// probeCheckpoints refuses stores that a checkpoint cannot stand on, before
// anything is claimed.
func (a *App) probeCheckpoints(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range a.nodes {
		if s, ok := n.query.Checkpoint.(interface{ Probe(context.Context) error }); ok {
			g.Go(func() error { return s.Probe(ctx) })
		}
	}
	return g.Wait()
}

// lockDir is the folder of the lock that keeps two processes of one host from
// running a query on the same checkpoint. A checkpoint in an object store has no file lock:
// between hosts its lock is the lease in the marker, and on one host, where both
// would be the same instance, a folder of the user's stands for the location and
// for the endpoint of its store, empty for the provider's own. Without such a
// folder there is only the lease.
func lockDir(location, endpoint string) string {
	if !pipeline.Remote(location) {
		return location
	}
	base, err := os.UserCacheDir()
	if err == nil {
		base = filepath.Join(base, "weir", "locks")
	} else {
		base = filepath.Join(os.TempDir(), "weir-locks-"+strconv.Itoa(os.Getuid()))
	}
	name := strings.NewReplacer("://", "-", "/", "-").Replace(location)
	place := strings.TrimRight(endpoint, "/") + " " + location
	dir := filepath.Join(base, name[:min(len(name), 80)]+"-"+marker.Hash([]byte(place))[:12])
	if err := objstore.MakeDir(dir); err != nil {
		return ""
	}
	return dir
}

// endpoint is the URL of the store that a location lies in, as it is configured;
// empty for the provider's own and for a local folder.
func (a *App) endpoint(location string) string {
	if !pipeline.Remote(location) || a.openStores() != nil {
		return ""
	}
	if cloud.IsLocation(location) {
		at, err := cloud.ParseLocation(location)
		if err != nil {
			return ""
		}
		return a.clouds.Config(at).Endpoint
	}
	at, err := s3.ParseLocation(location)
	if err != nil {
		return ""
	}
	return a.stores.Config(at.Bucket).EndpointURL()
}

// lockDir is the folder of the lock of a checkpoint of this pipeline.
func (a *App) lockDir(location string) string { return lockDir(location, a.endpoint(location)) }

// putAside moves a query's checkpoint to a name of its own beside it, which it
// returns, empty where there was none. With keep, the operators' state stays:
// the markers name its files by path and checksum, so what is sound of it need
// not be rebuilt from the table.
func (a *App) putAside(ctx context.Context, q pipeline.Query, keep bool) (aside string, err error) {
	location := CheckpointDir(a.P, q)
	if dir := a.lockDir(location); dir != "" {
		lock, err := checkpoint.Acquire(dir, instanceID(location, q.Name), a.opts.TakeOver)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if lock != nil {
			defer func() { _ = lock.Release() }()
		}
	}
	aside = location + ".aside-" + clock.Nonce()
	if pipeline.Remote(location) {
		moved, err := a.moveObjects(ctx, location, aside, keep)
		if err == nil && !moved {
			aside = ""
		}
		return aside, err
	}
	if _, err := os.Stat(location); err != nil {
		return "", nil //nolint:nilerr // nothing to put aside
	}
	if err := os.Rename(location, aside); err != nil {
		return "", failure.Wrap(failure.Checkpoint, err, "put the checkpoint folder %s aside", location)
	}
	if keep {
		return aside, keepState(aside, location)
	}
	return aside, nil
}

// moveObjects copies every object before it deletes the first: a crash between
// leaves the checkpoint whole or partly gone, and the next start decides from
// the markers either way.
func (a *App) moveObjects(ctx context.Context, from, to string, keep bool) (moved bool, err error) {
	src, err := a.openCheckpoint(ctx, from)
	if err != nil {
		return false, err
	}
	dst, err := a.openCheckpoint(ctx, to)
	if err != nil {
		return false, err
	}
	all, err := src.List(ctx, "")
	if err != nil {
		return false, err
	}
	each := func(do func(ctx context.Context, key string) error) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(objectsInFlight)
		for _, o := range all {
			if keep && strings.HasPrefix(o.Key, stateFolder+"/") {
				continue
			}
			moved = true
			g.Go(func() error { return do(ctx, o.Key) })
		}
		return g.Wait()
	}
	err = each(func(ctx context.Context, key string) error {
		data, err := src.Get(ctx, key)
		if err != nil {
			return err
		}
		return dst.Put(ctx, key, data)
	})
	if err == nil {
		err = each(src.Delete)
	}
	if err != nil {
		return moved, failure.Wrap(failure.ClassOf(err), err, "put the checkpoint %s aside", from)
	}
	return moved, nil
}

// stateFolder is the folder of the operators' state in a checkpoint.
const stateFolder = "state"

// keepState moves the operators' state from the folder that was put aside into
// the new one.
func keepState(aside, dir string) error {
	if _, err := os.Stat(filepath.Join(aside, stateFolder)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := objstore.MakeDir(dir); err != nil {
		return failure.Wrap(failure.Checkpoint, err, "make the checkpoint folder %s", dir)
	}
	if err := os.Rename(filepath.Join(aside, stateFolder), filepath.Join(dir, stateFolder)); err != nil {
		return failure.Wrap(failure.Checkpoint, err, "keep the state of the checkpoint in %s", aside)
	}
	return nil
}
