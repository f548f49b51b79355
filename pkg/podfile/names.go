package podfile

// Names of files beside those of this package. The first four are in the state folder.
const (
	AgentLockName   = "agent.lock"    // whose holder has the node
	AgentSocketName = "agent.sock"    // where a living agent answers; also in a pod's own folder
	HandoverName    = "handover.sock" // where a successor asks for the node
	PluginLogName   = "plugin.log"    // unless the plugin's entry names another place; one older file is kept beside it, with the end .1
	// CacheSnapshotName is in the folder that survives a reboot.
	CacheSnapshotName = "cache.snapshot"
)
