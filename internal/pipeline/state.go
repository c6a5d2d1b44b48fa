package pipeline

// Stores of a query's state.
const (
	StateMemory = "memory"
	StatePebble = "pebble"
)

// Defaults of a query's state.
const (
	DefaultStateCache = Size(256 << 20)
	DefaultStatePart  = Size(16 << 20)
)

// State says where a query keeps what it remembers between batches: ids of
// dropDuplicatesWithinWatermark, open sessions and windows.
type State struct {
	Store string `yaml:"store" weir:"enum=memory|pebble"`
	// CacheBytes bounds the memory of pebble.
	CacheBytes Size `yaml:"cacheBytes" weir:"min=8388608"`
	// Folder is a local working folder of pebble; empty is one in the checkpoint,
	// or in the user's cache folder where that is remote.
	Folder string `yaml:"folder" weir:"path"`
	// PartBytes is the size at which a snapshot is cut into parts.
	PartBytes Size `yaml:"partBytes" weir:"min=1024,max=1073741824"`
}

func (s *State) setDefaults() {
	s.Store, s.CacheBytes, s.PartBytes = StateMemory, DefaultStateCache, DefaultStatePart
}

func (l *loader) checkState(q *Query, key string) {
	if q.State.Store == StatePebble {
		return
	}
	for _, name := range []string{"cacheBytes", "folder"} {
		at := key + ".state." + name
		if _, given := l.places[at]; given && !l.isBroken(at) {
			l.faultKey(at, "%s is of store: pebble; state is kept in memory", name)
		}
	}
}
