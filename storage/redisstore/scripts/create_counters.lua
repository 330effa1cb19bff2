-- Makes the counters of a user and of a key, unless they are there, or the user was
-- deleted lately, or the key was or has left: whoever asks has read that they exist, which
-- may be over.
--
-- KEYS  1 counters of the user  2 the mark of a deleted user  3 that of the key
-- ARGV  1 a new counter of a user  2 Seq of the key, '' for none  3 its new counter

if redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return 0 end
redis.call('HSETNX', KEYS[1], 'u', ARGV[1])
if ARGV[2] ~= '' then redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3]) end
return 1
