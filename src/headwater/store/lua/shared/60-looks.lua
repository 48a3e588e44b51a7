--[[
  The state of an object, for a call about one object and for a call about several. Packages add stream(K) and
  group(K, name), which return the replies of hw_stream_info and hw_group_info, or nil for no group; queue(K),
  which returns the reply of hw_queue_stats; and channel(M) and shard(S), which return those of
  hw_channel_view, or nil for no channel, and hw_channel_shard.
]]
local looks = {}
