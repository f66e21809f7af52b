package wire

// Word is a four-letter word: an administrative command sent in place of a handshake, answered as text on a
// connection that is then closed. On the wire it sits where a frame's length would be; every word read as a
// length is far above any legal one.
type Word string

// The words of ZooKeeper. Unknown ones are oversized lengths and get no answer.
const (
	WordRuok Word = "ruok"
	WordIsro Word = "isro"
	WordSrvr Word = "srvr"
	WordStat Word = "stat"
	WordConf Word = "conf"
	WordCons Word = "cons"
	WordCrst Word = "crst"
	WordSrst Word = "srst"
	WordDirs Word = "dirs"
	WordDump Word = "dump"
	WordEnvi Word = "envi"
	WordGtmk Word = "gtmk"
	WordStmk Word = "stmk" // followed by 8 bytes
	WordWchs Word = "wchs"
	WordWchc Word = "wchc"
	WordWchp Word = "wchp"
	WordHash Word = "hash"
	WordMntr Word = "mntr"

	// WordTelnetQuit is what an interrupted telnet sends: the connection is closed without an answer and
	// without a complaint in the log.
	WordTelnetQuit Word = "\xff\xf4\xff\xfd"
)

// words are those that ParseWord recognises.
var words = map[Word]bool{
	WordRuok: true, WordIsro: true, WordSrvr: true, WordStat: true, WordConf: true, WordCons: true, WordCrst: true,
	WordSrst: true, WordDirs: true, WordDump: true, WordEnvi: true, WordGtmk: true, WordStmk: true, WordWchs: true,
	WordWchc: true, WordWchp: true, WordHash: true, WordMntr: true, WordTelnetQuit: true,
}

// StmkBytes is what follows the word stmk: the new mask.
const StmkBytes = 8

// ParseWord recognises the first four bytes of a connection as a four-letter word.
func ParseWord(b []byte) (Word, bool) {
	if len(b) < 4 {
		return "", false
	}
	// Almost every connection begins with the length of a handshake, whose first byte is 0.
	if b[0] == 0 {
		return "", false
	}
	w := Word(b[:4])
	return w, words[w]
}

// AlwaysAnswered reports whether a member answers the word also while it does not serve.
func (w Word) AlwaysAnswered() bool {
	switch w {
	case WordRuok, WordIsro, WordEnvi, WordGtmk, WordStmk, WordTelnetQuit:
		return true
	}
	return false
}

// Answers that are the same for every server. None of the first four ends in a newline.
const (
	AnswerRuok     = "imok"
	AnswerIsroRW   = "rw"
	AnswerIsroRO   = "ro"
	AnswerIsroNone = "null" // not serving

	AnswerCrst = "Connection stats reset.\n"
	AnswerSrst = "Server stats reset.\n"

	// AnswerNotServing begins the answer of a member that is not serving to most words; AppendSrvr and
	// AppendStatWord write it themselves.
	AnswerNotServing = "This ZooKeeper instance is not currently serving requests\n"
)

// AnswerNotAllowed is the answer to a word that exists and is not in the whitelist.
func AnswerNotAllowed(w Word) string {
	return string(w) + " is not executed because it is not in the whitelist.\n"
}
