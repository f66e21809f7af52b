// Package zoocfg turns what a person wrote - a zoo.cfg with its myid and dynamic file, flags, environment
// variables - into the settings of one member. [Load] is the whole surface; [Settings] is what comes out.
//
// Precedence: flag, then KVD_* in the environment, then zoo.cfg, then the default. Every key that ZooKeeper
// knows is one of: honoured; ignored with one warning that says why; refused, where ignoring it would weaken
// security or change the quorum. Any other key is an error that names the nearest known one (ZooKeeper turns a
// typo into a system property and says nothing); --lenient-config makes that a warning. All problems come
// in one *Error and nothing on disk is touched. The table is in keys.go.
package zoocfg
